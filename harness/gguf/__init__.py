"""GGUF files as ordinary Hugging Face folders: weights through transformers, tokenizers rebuilt from the header."""
