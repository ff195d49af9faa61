"""What a URL leads to: objects, their sub-resources, and what is only asked; and the answer's form."""
