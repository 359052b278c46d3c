"""Lists and downloads files over HTTP(S): for the sources on a web server, and for those on the Hugging Face Hub."""
