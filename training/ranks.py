"""A run over several processes, on the engines of PyTorch; loaded only where there are several."""

import logging
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from model.position import build_position
from model.transformer import Transformer, with_config
from training.alone import Alone
from training.loss import summed_loss
from training.muon import orthogonalize

# On CPUs, once in each process, of a fallback to another collective in `Fsdp.orthogonalize`.
logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)


class Ranks(Alone):
    """Several processes, each with its share of every batch."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def own(self, rows):
        each = len(rows) // self.size
        return rows[self.rank * each : (self.rank + 1) * each]

    def without_position(self, model):
        device, whole = model.output_weight.device, self.whole(model)
        whole.drop_position()
        return self.place(lambda: whole, device)

    def sum(self, number):
        dist.all_reduce(number)
        return number

    def largest(self, number):
        found = torch.tensor(number, device=self.mesh.device_type)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.item()

    def from_first(self, value):
        values = [value]
        dist.broadcast_object_list(values, device=torch.device("cpu"))
        return values[0]


class Ddp(Ranks):
    """A whole model in each process (DistributedDataParallel)."""

    def place(self, build, device):
        self.mesh = init_device_mesh(device.type, (self.size,))
        model = build().to(device)
        self.module = nn.parallel.DistributedDataParallel(_SummedLoss(model), gradient_as_bucket_view=True)
        return model

    def whole(self, model):
        return with_config(model, model.config)  # new parameters, without the hooks of DistributedDataParallel

    def summed_loss(self, model, input_ids, targets, is_last):
        with nullcontext() if is_last else self.module.no_sync():
            return self.module(input_ids, targets) * self.size

    def orthogonalize(self, matrices):
        done, own = torch.zeros_like(matrices), slice(self.rank, None, self.size)
        done[own] = orthogonalize(matrices[own])
        dist.all_reduce(done)  # a gather would bring as many matrices as there are processes, where those are more
        return done


class Fsdp(Ranks):
    """A part of each weight, gradient and moment in each process (FSDP2, as Rajbhandari et al. 2020, stage 3)."""

    def place(self, build, device):
        self.mesh = init_device_mesh(device.type, (self.size,))
        model = None if self.rank else build()
        parts = Transformer(self.from_first(model and model.config), seed=None)
        for block in parts.layers:
            fully_shard(block, mesh=self.mesh)
        fully_shard(parts, mesh=self.mesh)
        register_fsdp_forward_method(parts, "hidden_states")  # which the losses call instead of forward
        parts.to_empty(device=device)
        how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(parts, {} if self.rank else model.state_dict(), options=how)
        return parts

    def compile(self, model):
        for block in model.layers:  # whose weights are whole before its forward, and not before `hidden_states`
            block.compile()

    def whole(self, model):
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        whole = Transformer(model.config, seed=None)
        if not self.rank:
            whole.load_state_dict(state, assign=True)
        return whole

    def whole_position(self, model):
        position = build_position(model.config)
        position.load_state_dict({name: each.full_tensor() for name, each in model.position.state_dict().items()})
        return position

    def whole_state(self, state):
        if isinstance(state, dict):
            return {key: self.whole_state(value) for key, value in state.items()}
        if isinstance(state, DTensor):
            state = state.full_tensor()
            return None if self.rank else state.cpu()
        return state

    def summed_loss(self, model, input_ids, targets, is_last):
        return summed_loss(model, input_ids, targets) * self.size

    def orthogonalize(self, matrices):
        whole = matrices.redistribute(placements=[Shard(0)])
        done = orthogonalize(whole.to_local())
        layout = {"shape": whole.shape, "stride": whole.stride()}
        done = DTensor.from_local(done, whole.device_mesh, [Shard(0)], run_check=False, **layout)
        return done.redistribute(placements=matrices.placements)

    def clip_grad_norm(self, model, limit):
        return nn.utils.clip_grad_norm_(model.parameters(), limit).full_tensor().item()

    def like(self, parameter, whole):
        if whole.shape != parameter.shape:  # a count of steps
            return whole
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


class _SummedLoss(nn.Module):
    """The loss as the forward pass of a module, which is all that DistributedDataParallel sees of a model."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        return summed_loss(self.model, input_ids, targets)


ENGINES = {"ddp": Ddp, "fsdp": Fsdp}
