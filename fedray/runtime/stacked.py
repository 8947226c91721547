"""placeholder"""
import torch
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime


def client_runtime(assembly: Assembly, device: torch.device) -> ClientRuntime:
    return ClientRuntime(assembly, device)
