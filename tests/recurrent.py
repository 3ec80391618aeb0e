"""Recurrent agents for the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical


class Counter(nn.Module):
    """Counts the observations of the episode, which in `Count` are 0, 1, 2, ...; its value is the difference.

    So all values are 0 for as long as the state is that of the environment. It plays 1 with a probability
    that rises with what was seen, by `slope`.
    """

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.1))
        self.register_buffer("start", torch.tensor(start))

    def initial_state(self, n: int) -> Any:
        return {"seen": self.start.expand(n, 1), "rest": (torch.ones(n, 2, 3, dtype=torch.int64),)}

    def distribution(self, obs: Tensor, state: Any) -> tuple[Categorical, Any]:
        seen = state["seen"]
        logits = torch.cat([torch.zeros_like(seen), self.slope * seen], dim=1)
        return Categorical(logits=logits), {"seen": seen + 1, "rest": (state["rest"][0] + 1,)}

    def value(self, obs: Tensor, state: Any) -> Tensor:
        return state["seen"][:, 0] - obs[:, 0]


class LSTMAgent(nn.Module):
    """CleanRL's ppo_atari_lstm, for vectors."""

    def __init__(self, inputs: int = 1, actions: int = 2) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.network = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh())
            self.lstm = nn.LSTM(8, 16, num_layers=2)
            self.actor = nn.Linear(16, actions)
            self.critic = nn.Linear(16, 1)

    def get_states(self, x: Tensor, lstm_state: Any, done: Tensor) -> tuple[Tensor, Any]:
        hidden = self.network(x)
        batch_size = lstm_state[0].shape[1]
        hidden = hidden.reshape((-1, batch_size, self.lstm.input_size))
        done = done.reshape((-1, batch_size))
        new_hidden = []
        for h, d in zip(hidden, done, strict=True):
            kept = (1.0 - d).view(1, -1, 1)
            h, lstm_state = self.lstm(h.unsqueeze(0), (kept * lstm_state[0], kept * lstm_state[1]))
            new_hidden += [h]
        return torch.flatten(torch.cat(new_hidden), 0, 1), lstm_state

    def get_value(self, x: Tensor, lstm_state: Any, done: Tensor) -> Tensor:
        hidden, _ = self.get_states(x, lstm_state, done)
        return self.critic(hidden)

    def get_action_and_value(
        self, x: Tensor, lstm_state: Any, done: Tensor, action: Tensor | None = None
    ) -> tuple[Any, ...]:
        hidden, lstm_state = self.get_states(x, lstm_state, done)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden), lstm_state
