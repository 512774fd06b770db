"""The status page in a browser: Debian's chromium, driven through playwright."""
