"""The worker: claims, presence, and the work of one claimed run."""
