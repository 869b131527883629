"""Show traces and results: live, pages, notebooks."""
