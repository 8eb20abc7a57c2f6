"""vLLM servers as engines: started or found, checked, driven over their own HTTP surface.

Importing this package imports neither vllm nor torch: vLLM runs in processes of its own.
"""

from agentrl.serving.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
