"""The stored pages as a site to read; explorers in it need no kernel. Pages: all of them."""
