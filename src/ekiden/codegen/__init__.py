"""Code generators: from lowered loop programs to code."""
