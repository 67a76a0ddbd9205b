"""Tasks as the API shows them."""
