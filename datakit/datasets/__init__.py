"""Describes public datasets: their licenses, sizes, columns and traps, and how a recipe reads them."""
