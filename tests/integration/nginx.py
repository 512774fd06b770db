"""nginx from Debian as a process of the test: TLS with a certificate of our own, a WebSocket behind it."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen {host}:{port} ssl;
        ssl_certificate {folder}/certificate.pem;
        ssl_certificate_key {folder}/key.pem;
        location / {{
            proxy_pass http://127.0.0.1:{behind};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
            proxy_set_header X-Forwarded-For "{forwarded_for}";
            proxy_read_timeout {idle_seconds}s;
        }}
    }}
}}
"""


def require_nginx() -> str:
    """The path of nginx; skips the test without one."""
    path = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if path is None:
        pytest.skip("needs nginx: apt-get install nginx-light")
    return path


def make_certificate(folder: Path, host: str = "127.0.0.1") -> Path:
    """certificate.pem and key.pem for `localhost` and an address; the certificate is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test at {host}")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def nginx_command(
    folder: Path,
    *,
    port: int,
    behind: int,
    host: str = "127.0.0.1",
    forwarded_for: str = "$proxy_add_x_forwarded_for",
    idle_seconds: int = 60,
) -> list[str]:
    """The command that runs nginx in front of a port of 127.0.0.1. `folder` holds the certificate."""
    config = folder / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            folder=folder,
            host=host,
            port=port,
            behind=behind,
            forwarded_for=forwarded_for,
            idle_seconds=idle_seconds,
        )
    )
    return [require_nginx(), "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(config)]


@asynccontextmanager
async def running_nginx(
    folder: Path,
    *,
    behind: int,
    forwarded_for: str = "$proxy_add_x_forwarded_for",
    idle_seconds: int = 60,
    port: int = 0,
) -> AsyncIterator[int]:
    """nginx in front of a port of 127.0.0.1; gives its own. `folder` holds the certificate."""
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
    command = nginx_command(
        folder, port=port, behind=behind, forwarded_for=forwarded_for, idle_seconds=idle_seconds
    )
    async with trio.open_nursery() as nursery:
        process = await nursery.start(lambda task_status: trio.run_process(command, task_status=task_status))
        try:
            await _listening(port)
            yield port
        finally:
            process.terminate()
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await process.wait()
            nursery.cancel_scope.cancel()


async def _listening(port: int) -> None:
    with trio.fail_after(30):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.02)
                continue
            await stream.aclose()
            return
