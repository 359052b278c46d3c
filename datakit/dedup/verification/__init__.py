"""Exact comparison of proposed documents."""
