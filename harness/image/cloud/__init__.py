"""Cloud images of distributions: found, downloaded, verified."""
