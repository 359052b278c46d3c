"""Connected components of proposed pairs."""
