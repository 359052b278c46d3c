"""The handles through which a process that runs attempts uses its children."""
