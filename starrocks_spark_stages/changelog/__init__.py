"""Changelogs on Spark: `rules` is pure, the other modules run the rules in Spark."""
