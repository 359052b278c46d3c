"""Uses trained models: generates text, and exports runs to the format of the model hub."""
