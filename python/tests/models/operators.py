"""One operator, or a handful, in each of two wide branches: what autograd keeps and what kernels take beside their results.

`record_operators.py` records them; they are no cases of `load`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import Case, ids
from .corners import Chain, Op

OPERATORS = {
    "adapt": lambda x: F.adaptive_avg_pool1d(x, 512),
    "adaptmax": lambda x: F.adaptive_max_pool1d(x, 256).repeat(1,1,2),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.square() + 1.0),
    "addcmul": lambda x: torch.addcmul(x, x, x.tanh(), value=0.5),
    "alpha": lambda x: F.alpha_dropout(x, 0.1),
    "amax": lambda x: x + x.amax(1, keepdim=True),
    "arange": lambda x: x / torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None],
    "atan2": lambda x: torch.atan2(x, x.abs() + 1.0),
    "baddbmm": lambda x: torch.baddbmm(x, x[:, :, :256], x),
    "bce": lambda x: x * F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
    "beta": lambda x: torch.distributions.Beta(F.softplus(x)+.1, F.softplus(-x)+.1, validate_args=False).log_prob(torch.sigmoid(x).clamp(1e-3, 1-1e-3)),
    "bicubic": lambda x: F.interpolate(x.unsqueeze(1), scale_factor=(0.5,0.5), mode="bicubic").squeeze(1).repeat(1,2,2),
    "bilinear": lambda x: F.interpolate(x.unsqueeze(1)[..., ::2], scale_factor=(1,2), mode="bilinear").squeeze(1),
    "bmm_bias": lambda x: x + (x @ x.new_ones(4, 512, 1)),
    "bn2": lambda x: F.batch_norm(x.flatten(0,1), None, None, training=True).view_as(x),
    "cauchy": lambda x: torch.distributions.Cauchy(x, F.softplus(x)+.1, validate_args=False).log_prob(x),
    "cdist1": lambda x: torch.cdist(x[..., :32], x[..., 32:64], p=1).repeat(1,1,2),
    "ce": lambda x: x * F.cross_entropy(x.flatten(0,1), torch.zeros(1024, dtype=torch.long, device=x.device), label_smoothing=0.1),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (256, 2))) * torch.view_as_complex(x.unflatten(-1, (256, 2)))).flatten(-2),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(1), dim=-1).unsqueeze(-1) * x,
    "count": lambda x: x * (x > 0).sum(-1, keepdim=True) / (x > 0).float().sum(),
    "cummax": lambda x: x.cummax(1).values,
    "cumprod": lambda x: (x.sigmoid()+0.5).cumprod(-1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsumr": lambda x: x.flip(1).cumsum(1).flip(1),
    "diag": lambda x: x + torch.diag_embed(x[:, 0, :256]).repeat(1,1,2),
    "cumsum_mask": lambda x: x * (x > 0).cumsum(1),
    "dot": lambda x: x * torch.dot(x[0, 0], x[0, 1]),
    "dropout": lambda x: F.dropout(x, 0.1),
    "einsum1": lambda x: torch.einsum("btd,bsd->bts", x, x).repeat(1,1,2),
    "einsum2": lambda x: torch.einsum("btd,bte->bde", x, x)[:, :256],
    "entropy": lambda x: x * -(x.softmax(-1) * x.log_softmax(-1)).sum(-1, keepdim=True),
    "erf": lambda x: torch.erf(x),
    "expit": lambda x: torch.special.expit(x),
    "expm1": lambda x: torch.expm1(-x.abs()),
    "fro": lambda x: x / torch.linalg.matrix_norm(x, keepdim=True),
    "gather": lambda x: x.gather(1, (x.detach()*0).long()),
    "glu": lambda x: F.glu(torch.cat([x, x], -1)),
    "gn": lambda x: F.group_norm(x.transpose(1,2), 8).transpose(1,2),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "huber": lambda x: x * F.huber_loss(x, x.flip(1)),
    "hypot": lambda x: torch.hypot(x, x + 1.0),
    "index2": lambda x: x[:, torch.arange(256, device=x.device)],
    "index_add": lambda x: torch.zeros_like(x).index_add(1, torch.arange(256, device=x.device), x),
    "index_put": lambda x: torch.zeros_like(x).index_put((torch.arange(4, device=x.device),), x),
    "index_apart": lambda x: x[torch.arange(4, device=x.device)[:, None], torch.arange(256, device=x.device)],
    "index_elements": lambda x: x[torch.arange(4, device=x.device)[:, None, None], torch.arange(256, device=x.device)[:, None], torch.arange(512, device=x.device)],
    "instance": lambda x: F.instance_norm(x.transpose(1,2)).transpose(1,2),
    "kl": lambda x: x * F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
    "kl_divergence": lambda x: torch.distributions.kl_divergence(torch.distributions.Normal(x, F.softplus(x), validate_args=False), torch.distributions.Normal(torch.zeros_like(x), torch.ones_like(x), validate_args=False)),
    "kthvalue": lambda x: x.kthvalue(5, dim=1, keepdim=True).values + x,
    "lerp": lambda x: torch.lerp(x, x.square(), 0.25),
    "lgamma": lambda x: torch.lgamma(x.abs() + 1.0),
    "linear_up": lambda x: F.interpolate(F.avg_pool1d(x,2), scale_factor=2, mode="linear"),
    "ln": lambda x: F.layer_norm(x, (512,)),
    "log1p": lambda x: torch.log1p(x.square()),
    "logaddexp": lambda x: torch.logaddexp(x, -x),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logsoftmax1": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x + x.logsumexp(1, keepdim=True),
    "lppool": lambda x: F.lp_pool1d(x.transpose(1,2), 2.0, 3, stride=1).transpose(1,2).mean(1,keepdim=True)+x,
    "lrn": lambda x: F.local_response_norm(x.transpose(1,2), 3).transpose(1,2),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "matmulT": lambda x: (x.transpose(1,2) @ x).softmax(-1)[:, :256],
    "matvec": lambda x: x + (x @ x[0, 0]).unsqueeze(-1),
    "max1": lambda x: x - x.max(dim=1, keepdim=True).values,
    "maximum": lambda x: torch.maximum(x, x.flip(-1)),
    "median": lambda x: x.unflatten(-1,(128,4)).median(-1,keepdim=True).values.expand(-1,-1,-1,4).flatten(2),
    "median1": lambda x: x - x.median(),
    "minmax": lambda x: (x - x.min()) / (x.max() - x.min()),
    "mse": lambda x: x * F.mse_loss(x, x.flip(1)),
    "nan": lambda x: torch.nan_to_num(x).clamp(-2.0, 2.0),
    "nearest": lambda x: F.interpolate(F.avg_pool1d(x,2), scale_factor=2),
    "norm": lambda x: x + x.norm(dim=-1, keepdim=True),
    "norm1": lambda x: x + x.norm(p=1, dim=-1, keepdim=True),
    "normal": lambda x: torch.distributions.Normal(x, F.softplus(x)+1e-3, validate_args=False).rsample(),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "norminf": lambda x: x + torch.linalg.vector_norm(x, float("inf"), -1, True),
    "outer": lambda x: x + torch.einsum("bt,bd->btd", x[..., 0], x[:, 0]),
    "pdist": lambda x: x * F.pairwise_distance(x, x.flip(1)).unsqueeze(-1),
    "prelu": lambda x: F.prelu(x, x.new_full((1,), .25)),
    "prod": lambda x: x + x.prod(-1, keepdim=True),
    "reflect": lambda x: F.avg_pool1d(F.pad(x.transpose(1,2), (1,1), mode="reflect"),3,1).transpose(1,2),
    "relu2": lambda x: F.relu(x).square(),
    "replicate": lambda x: F.pad(x.transpose(1,2), (1,1), mode="replicate")[..., 1:-1].transpose(1,2),
    "roll": lambda x: x.roll(3, 1),
    "rot90": lambda x: x.rot90(2, (1, 2)),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(1, (x.detach()*0).long(), x),
    "scatter_amax": lambda x: torch.zeros_like(x).scatter_reduce(1, (x.detach()*0).long(), x, "amax", include_self=False),
    "scatter_mean": lambda x: torch.zeros_like(x).scatter_reduce(1, (x.detach()*0).long(), x, "mean", include_self=False),
    "sigclamp": lambda x: torch.sigmoid(x).clamp(1e-3, 1-1e-3),
    "sinc": torch.sinc,
    "smooth": lambda x: x * F.smooth_l1_loss(x, x.flip(1)),
    "softmax1": lambda x: x.softmax(1),
    "softmaxT": lambda x: x.transpose(1,2).softmax(-1).transpose(1,2),
    "softmax_temp": lambda x: torch.softmax(x / x.abs().mean(), -1),
    "softplus": F.softplus,
    "sort": lambda x: x.sort(dim=-1).values,
    "sqrt": lambda x: x.sign() * x.abs().sqrt(),
    "std0": lambda x: x / x.std(),
    "std_mean": lambda x: x - torch.std_mean(x, dim=-1, keepdim=True)[0],
    "swiglu": lambda x: (F.silu(x[..., :256]) * x[..., 256:]).repeat(1, 1, 2),
    "topk": lambda x: x.topk(512, dim=-1).values,
    "triu": lambda x: x.triu(1) + x.tril(),
    "unfold": lambda x: F.fold(F.unfold(x.unsqueeze(1), 3, padding=1), x.shape[1:], 3, padding=1).squeeze(1),
    "unfoldt": lambda x: x.unfold(1, 4, 4).sum(-1).repeat_interleave(4, 1),
    "var0": lambda x: x * x.var(),
    "var1": lambda x: x + x.var(dim=1, keepdim=True).sqrt(),
    "where": lambda x: torch.where(x > 0, x, x.exp() - 1.0),
    "xlogy": lambda x: torch.xlogy(x, x.abs() + 1.0),
}


def cases() -> dict[str, Case]:
    def forward(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def batch(device):
        return ids(200, 4, 256, device=device), ids(200, 4, 256, device=device)

    def one(f):
        return Case(lambda: Chain(64, 512, [Op(f), Op(f)], v=200), batch, forward, ["Wide"],
                    {"precisions": ["float32"], "strict": False, "versions": [2]})  # fmt: skip

    return {f"operator_{name}": one(f) for name, f in OPERATORS.items()}
