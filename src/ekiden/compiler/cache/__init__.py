"""What was compiled is kept on disk: its keys, files and folders."""
