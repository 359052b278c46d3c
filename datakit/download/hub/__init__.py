"""Lists the files of a repository on the Hugging Face Hub, and says how each of them is requested."""
