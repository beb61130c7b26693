"""Everything that Hugging Face transformers is needed for (extra `hf`). Nothing is downloaded."""
