"""Export of compiled models to files; libraries, objects, C, archives, pages for browsers."""
