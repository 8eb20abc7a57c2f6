"""Models that read images: their families, image processors, and features among embeddings.

Heavy (`torch`, `transformers`); imported only by what loads or runs a model.
"""
