"""The graph executor that shows what every node gives, and how long it takes."""
