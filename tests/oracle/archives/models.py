"""Six models as users write them, with their loss inside: what an archive holds is what FSDP trains."""
import math, torch, torch.nn.functional as F
from torch import nn
from models import case, ids, CASES
CASES.clear()
def loss_of(model,*batch): return model(*batch)

class Dlrm(nn.Module):
    def __init__(s, tables=6, rows=20000, d=32):
        super().__init__()
        s.bags=nn.ModuleList(nn.EmbeddingBag(rows,d,mode='sum') for _ in range(tables))
        s.bottom=nn.Sequential(nn.Linear(13,256),nn.ReLU(),nn.Linear(256,d),nn.ReLU())
        n=tables+1
        s.top=nn.Sequential(nn.Linear(d+n*(n-1)//2,512),nn.ReLU(),nn.Dropout(0.1),nn.Linear(512,256),nn.ReLU(),nn.Linear(256,1))
    def forward(s, dense, sparse, y):
        x=s.bottom(dense)
        e=[bag(sparse[i]) for i,bag in enumerate(s.bags)]
        z=torch.stack([x]+e,dim=1)
        dots=torch.bmm(z,z.transpose(1,2))
        i,j=torch.tril_indices(dots.shape[1],dots.shape[1],-1,device=dots.device).unbind(0)
        out=s.top(torch.cat([x,dots[:,i,j]],dim=1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(out,y)
@case('own_dlrm',[],precisions=['float32'])
class _:
    make=Dlrm; forward=staticmethod(loss_of)
    batch=staticmethod(lambda d:(torch.randn(1024,13,device=d),ids(20000,6,1024,8,device=d),torch.rand(1024,device=d)))

class Block(nn.Module):
    def __init__(s,a,b):
        super().__init__()
        s.n1,s.c1=nn.GroupNorm(8,a),nn.Conv2d(a,b,3,padding=1)
        s.n2,s.c2=nn.GroupNorm(8,b),nn.Conv2d(b,b,3,padding=1)
        s.skip=nn.Conv2d(a,b,1) if a!=b else nn.Identity()
    def forward(s,x):
        h=s.c1(F.silu(s.n1(x))); h=s.c2(F.silu(s.n2(h)))
        return h+s.skip(x)
class UNet(nn.Module):
    def __init__(s,w=(32,64,128)):
        super().__init__()
        s.inp=nn.Conv2d(3,w[0],3,padding=1)
        s.downs=nn.ModuleList(Block(a,b) for a,b in zip((w[0],)+w,w))
        s.ups=nn.ModuleList(Block(a+b,b) for a,b in zip(w[:0:-1],w[-2::-1]))
        s.out=nn.Conv2d(w[0],3,1)
    def forward(s,x,y):
        x=s.inp(x); skips=[]
        for d in s.downs:
            x=d(x); skips.append(x); x=F.avg_pool2d(x,2)
        x=skips.pop()
        for u in s.ups:
            x=F.interpolate(x,scale_factor=2,mode='bilinear',align_corners=False)
            x=u(torch.cat([x,skips.pop()],1))
        return F.l1_loss(s.out(x),y)
@case('own_unet',['Block'])
class _:
    make=UNet; forward=staticmethod(loss_of)
    batch=staticmethod(lambda d:(torch.randn(8,3,64,64,device=d),torch.randn(8,3,64,64,device=d)))

class Lm(nn.Module):
    def __init__(s,v=2000,d=192):
        super().__init__()
        s.embed=nn.Embedding(v,d); s.rnn=nn.LSTM(d,d,2,dropout=0.2); s.drop=nn.Dropout(0.2); s.head=nn.Linear(d,v)
    def forward(s,x,y):
        h,_=s.rnn(s.drop(s.embed(x)))
        return F.cross_entropy(s.head(s.drop(h)).flatten(0,1),y.flatten())
@case('own_lstm_lm',['LSTM'],precisions=['float32'])
class _:
    make=Lm; forward=staticmethod(loss_of)
    batch=staticmethod(lambda d:(ids(2000,40,32,device=d),ids(2000,40,32,device=d)))

class Norm(nn.Module):
    def __init__(s,d): super().__init__(); s.weight=nn.Parameter(torch.ones(d))
    def forward(s,x):
        y=x.float(); y=y*torch.rsqrt(y.pow(2).mean(-1,keepdim=True)+1e-5)
        return y.type_as(x)*s.weight
def rotary(x,f):
    z=torch.view_as_complex(x.float().reshape(*x.shape[:-1],-1,2))
    return torch.view_as_real(z*f[None,:,None]).flatten(3).type_as(x)
class LlamaBlock(nn.Module):
    def __init__(s,d,h,k):
        super().__init__()
        s.h,s.k,s.hd=h,k,d//h
        s.n1,s.n2=Norm(d),Norm(d)
        s.wq,s.wk,s.wv,s.wo=nn.Linear(d,d,bias=False),nn.Linear(d,k*s.hd,bias=False),nn.Linear(d,k*s.hd,bias=False),nn.Linear(d,d,bias=False)
        s.w1,s.w2,s.w3=nn.Linear(d,3*d,bias=False),nn.Linear(3*d,d,bias=False),nn.Linear(d,3*d,bias=False)
    def forward(s,x,f):
        b,t,_=x.shape; y=s.n1(x)
        q,k,v=s.wq(y).view(b,t,s.h,s.hd),s.wk(y).view(b,t,s.k,s.hd),s.wv(y).view(b,t,s.k,s.hd)
        q,k=rotary(q,f),rotary(k,f)
        k,v=k.repeat_interleave(s.h//s.k,2),v.repeat_interleave(s.h//s.k,2)
        o=F.scaled_dot_product_attention(q.transpose(1,2),k.transpose(1,2),v.transpose(1,2),is_causal=True)
        x=x+s.wo(o.transpose(1,2).reshape(b,t,-1))
        y=s.n2(x)
        return x+s.w2(F.silu(s.w1(y))*s.w3(y))
class Llama(nn.Module):
    def __init__(s,v=4000,d=256,n=4,h=4,k=2,t=256):
        super().__init__()
        s.embed=nn.Embedding(v,d); s.layers=nn.ModuleList(LlamaBlock(d,h,k) for _ in range(n)); s.norm=Norm(d); s.out=nn.Linear(d,v,bias=False)
        a=torch.outer(torch.arange(t,device='cpu').float(),1/(10000**(torch.arange(0,d//h,2,device='cpu').float()/(d//h))))
        s.register_buffer('freqs',torch.polar(torch.ones_like(a),a).to(s.embed.weight.device),persistent=False)
    def forward(s,x,y):
        h=s.embed(x)
        for l in s.layers: h=l(h,s.freqs)
        return F.cross_entropy(s.out(s.norm(h)).float().view(-1,4000),y.view(-1))
@case('own_llama',['LlamaBlock'])
class _:
    make=Llama; forward=staticmethod(loss_of)
    batch=staticmethod(lambda d:(ids(4000,8,256,device=d),ids(4000,8,256,device=d)))

class NextBlock(nn.Module):
    def __init__(s,d):
        super().__init__()
        s.dw=nn.Conv2d(d,d,7,padding=3,groups=d); s.norm=nn.LayerNorm(d,eps=1e-6)
        s.p1,s.p2=nn.Linear(d,4*d),nn.Linear(4*d,d); s.gamma=nn.Parameter(1e-6*torch.ones(d))
    def forward(s,x):
        y=s.dw(x).permute(0,2,3,1)
        y=s.p2(F.gelu(s.p1(s.norm(y))))*s.gamma
        return x+y.permute(0,3,1,2)
class ConvNext(nn.Module):
    def __init__(s,dims=(64,128)):
        super().__init__()
        s.stem=nn.Conv2d(3,dims[0],4,4); s.a=nn.Sequential(*[NextBlock(dims[0]) for _ in range(3)])
        s.norm=nn.GroupNorm(1,dims[0]); s.down=nn.Conv2d(dims[0],dims[1],2,2); s.b=nn.Sequential(*[NextBlock(dims[1]) for _ in range(3)])
        s.head=nn.Linear(dims[1],100)
    def forward(s,x,y):
        x=s.b(s.down(s.norm(s.a(s.stem(x)))))
        return F.cross_entropy(s.head(F.adaptive_avg_pool2d(x,1).flatten(1)),y,label_smoothing=0.1)
@case('own_convnext',['NextBlock'])
class _:
    make=ConvNext; forward=staticmethod(loss_of)
    batch=staticmethod(lambda d:(torch.randn(32,3,64,64,device=d),ids(100,32,device=d)))

def drop_path(x,p):
    m=x.new_empty((x.shape[0],)+(1,)*(x.ndim-1)).bernoulli_(1-p)
    m.div_(1-p)
    return x*m
class VitBlock(nn.Module):
    def __init__(s,d,h,p):
        super().__init__()
        s.h,s.p=h,p; s.n1,s.n2=nn.LayerNorm(d),nn.LayerNorm(d); s.qkv,s.proj=nn.Linear(d,3*d),nn.Linear(d,d)
        s.fc1,s.fc2=nn.Linear(d,4*d),nn.Linear(4*d,d); s.ls1=nn.Parameter(torch.ones(d)); s.ls2=nn.Parameter(torch.ones(d))
    def attend(s,x):
        b,n,c=x.shape
        q,k,v=s.qkv(x).reshape(b,n,3,s.h,c//s.h).permute(2,0,3,1,4).unbind(0)
        a=torch.einsum('bhnd,bhmd->bhnm',q,k)*(c//s.h)**-0.5
        a=a.softmax(-1)
        return s.proj(torch.einsum('bhnm,bhmd->bnhd',a,v).reshape(b,n,c))
    def forward(s,x):
        x=x+drop_path(s.ls1*s.attend(s.n1(x)),s.p)
        return x+drop_path(s.ls2*s.fc2(F.gelu(s.fc1(s.n2(x)))),s.p)
class Vit(nn.Module):
    def __init__(s,d=192,n=4,h=3):
        super().__init__()
        s.patch=nn.Conv2d(3,d,8,8); s.pos=nn.Parameter(torch.zeros(1,64,d)); s.blocks=nn.ModuleList(VitBlock(d,h,0.1) for _ in range(n)); s.norm=nn.LayerNorm(d); s.head=nn.Linear(d,64)
    def forward(s,a,b,y):
        def embed(x):
            x=s.patch(x).flatten(2).transpose(1,2)+s.pos
            for blk in s.blocks: x=blk(x)
            return F.normalize(s.head(s.norm(x).mean(1)),dim=-1)
        return F.cosine_embedding_loss(embed(a),embed(b),y)
@case('own_vit',['VitBlock'])
class _:
    make=Vit; forward=staticmethod(loss_of)
    batch=staticmethod(lambda d:(torch.randn(16,3,64,64,device=d),torch.randn(16,3,64,64,device=d),ids(2,16,device=d)*2-1))
