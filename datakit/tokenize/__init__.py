"""The tokenize and train-tokenizer stages."""
