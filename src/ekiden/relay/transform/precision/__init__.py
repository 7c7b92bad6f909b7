"""In which floating-point type each product is computed."""
