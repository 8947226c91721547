"""What a method is made of.

algorithm.py  the interface of a method, and the registry
training.py   local training as a template
stacked.py    local training of several clients as one batched model
client.py     what a client step sees
optimizers.py what takes the steps of local training
schedules.py  how the learning rate changes over rounds
server.py     what a server step sees, and a round's exchanges
state.py      state as nested mappings of tensors
payload.py    what travels: declarations and checks of its fields
sums.py       sums over uploads
privacy.py    clipping and noise of what clients upload
gate.py       the gate that checks, counts and transforms what travels
"""

from fedray.core.algorithm import (
    Algorithm,
    AuxiliaryMethod,
    HyperParameters,
    LocalContext,
    PromptMethod,
    Requires,
    SummingMethod,
    algorithms,
)
from fedray.core.client import (
    Batch,
    Client,
    EvalSet,
    HeldOut,
    Samples,
    Setting,
    Skeleton,
    TrainingConfig,
)
from fedray.core.gate import Gate
from fedray.core.optimizers import (
    PLAIN_SGD,
    SGD,
)
from fedray.core.payload import (
    KINDS,
    BadPayload,
    Call,
    Payload,
    PayloadTypes,
    payload_field,
)
from fedray.core.privacy import Privacy, PrivacyMode
from fedray.core.schedules import Schedule
from fedray.core.server import Downlinks, Exchange, Server, Uplinks, held_versions
from fedray.core.state import ClientState, ServerState, StateTree, Tensors
from fedray.core.sums import (
    Total,
    halves,
    joined,
    mean_of,
    total_of,
    total_over,
    weighed,
)
from fedray.core.training import LocalTraining, Trained, batch_sizes, fit, with_extra
