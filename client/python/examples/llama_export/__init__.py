"""The steps of export_llama.py, a file each, and what they share: run, programs, decoding, compare, peers."""
