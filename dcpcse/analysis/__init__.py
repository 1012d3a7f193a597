"""Results for people to look at: pictures, pages, comparisons."""
