"""Reports what the rules of a recipe do: from a finished step, or from a preview that writes nothing into the root."""
