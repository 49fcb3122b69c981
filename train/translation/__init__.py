"""From text to text with a trained model."""
