"""Pictures: from bytes that nobody vouches for to an upright RGB array. No torch, no network, no model.

sniff (which format) -> header (how large, which way up) -> decode (pixels, through colour) -> `Picture`.
"""
