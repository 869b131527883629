"""From traces to answers: where the time goes, which rank holds the others up, what has become slower."""
