"""Reads models of the Hugging Face Hub and starts runs from them, and converts trained models back."""
