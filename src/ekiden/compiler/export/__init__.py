"""What a compiled model is written as: libraries, objects, C, archives, pages for browsers."""
