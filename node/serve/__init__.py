"""The expert server: which cells this node holds, and answering calls for them."""
