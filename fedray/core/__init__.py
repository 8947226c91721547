"""The building blocks of a federated learning method.

algorithm.py   interface of a method, its declarations, and the registry of methods
training.py    local training as a template
stacked.py     local training of several clients as one batched model
client.py      data, model and random streams of a client step
optimizers.py  optimisers of local training, and schedules of its learning rate
server.py      arguments of a server step, and the exchanges of a round
payload.py     payloads: declarations and checks of their fields
sums.py        sums over uploads
gate.py        the gate that checks, counts and transforms payloads; privacy

The names here are those that the declaration and the steps of a method need.
"""

from fedray.base.flat import Flat
from fedray.base.trees import ClientState, ServerState, StateTree, Tensors
from fedray.config import Epochs, LearningRate, LossWeight, Temperature
from fedray.core.algorithm import (
    Algorithm,
    AuxiliaryMethod,
    LocalContext,
    PromptMethod,
    Requires,
    StepResult,
    algorithms,
    gift,
    is_tested_together,
    method,
    payload_of,
    step,
    takes_equal_mean,
)
from fedray.core.client import Batch, Client, Samples, Setting, Skeleton, TrainingConfig, row_means
from fedray.core.gate import Gate, Privacy
from fedray.core.optimizers import PLAIN_SGD, SGD, Schedule
from fedray.core.payload import KINDS, BadPayload, Call, Fields, Payload, sent
from fedray.core.server import Downlinks, Exchange, Server, Uplinks, held_versions
from fedray.core.sums import Sums, Total, combined_rows, doubled, mean_of, stack_trees, total_of
from fedray.core.training import LocalTraining, Trained, batch_sizes, fit, with_extra
from fedray.models import Classifier, ClassifierOutput
