"""Measures a mixture-of-experts layer by itself: cases, routings, variants of the layer, timing, rooflines, rows."""
