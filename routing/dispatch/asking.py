"""One server's part of a call as a request, if it is one that may be sent. Pure."""

from __future__ import annotations

from routing.dispatch.call import MoeCall, WireSettings
from routing.dispatch.plan import ServerCall
from routing.errors import LocalError
from routing.wire.codecs import finite
from routing.wire.experts import Combine, ExpertsRequest, framed_nbytes, max_reply_bytes
from routing.wire.limits import FRAME_PREFIX_BYTES, MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES

CALL_IDS = 2**32
"""Call ids are u32 and start again at 0; only those in flight must differ."""


def make_request(
    call: MoeCall, server_call: ServerCall, settings: WireSettings, call_id: int
) -> ExpertsRequest:
    """The request to one server.

    Raises:
        LocalError: the hidden states are no numbers: every server would have to refuse them.
    """
    x, weights = call.part(server_call)
    if not finite(x) or (weights is not None and not finite(weights)):
        raise LocalError(f"layer {call.layer}: the trunk gave NaN or infinity: is the model file intact?")
    return ExpertsRequest(
        model_id=call.model_id,
        layer=call.layer,
        call_index=call.call_index,
        call_id=call_id,
        x=x,
        counts=server_call.counts,
        experts=server_call.experts,
        weights=weights,
        n_out=call.n_out,
        codec=settings.codec,
        codec_back=settings.codec_back,
        combine=settings.combine,
        deadline_ms=max(1, round(settings.timeout * 1000)),
        run_length=call.run_length if settings.combine is Combine.STABLE else 0,
    )


def checked_size(request: ExpertsRequest) -> int:
    """Bytes of a request on its stream.

    Raises:
        LocalError: it or its answer is too large to be taken.
    """
    size = framed_nbytes(request)
    for what, nbytes, limit in (
        ("request", size - FRAME_PREFIX_BYTES, MAX_REQUEST_BYTES),
        ("answer", max_reply_bytes(request), MAX_MESSAGE_BYTES),
    ):
        if nbytes > limit:
            raise LocalError(
                f"layer {request.layer}: the {what} would have {nbytes} bytes, the limit is {limit}: "
                "use a smaller ubatch, or combine = sum"
            )
    return size
