"""The same step played by simpy: one process a rank, a transfer, a gather. Written apart."""

from __future__ import annotations

import simpy

from gangsaw.schedule.actions import KIND_NAMES


class Play:
    """Start and end of each action, start and arrival of each transfer, peak memory a rank."""

    def __init__(self, schedule, times, transfers=None, data=None, memory=None):
        self.s, self.t, self.x, self.d, self.mem = schedule, times, transfers, data, memory
        self.env = simpy.Environment()
        self.begin, self.finish, self.sent, self.arrived = {}, {}, {}, {}
        self.input: dict[tuple, simpy.Event] = {}
        self.come: dict[tuple, simpy.Event] = {}
        self.links: dict[int, simpy.Resource] = {}
        self.side = [simpy.Resource(self.env) for _ in range(schedule.ranks)]
        self.gathered: dict[int, simpy.Event] = {}
        self.level = [0.0] * schedule.ranks
        if memory is not None:
            self.level = [float(b) for b in memory.static_bytes]
        self.peak = list(self.level)
        for rank in range(schedule.ranks):
            self.env.process(self.rank(rank))
        self.env.run()

    def event(self, table, key):
        if key not in table:
            table[key] = self.env.event()
        return table[key]

    def rows(self, rank):
        row = self.s.rank_row(rank)
        base = int(self.s.row[rank])
        actions = [
            (base + i, KIND_NAMES[k], int(s), int(mb), int(p))
            for i, (k, s, mb, p) in enumerate(zip(*row, strict=True))
        ]
        i = 0
        while i < len(actions):
            width = 2 if actions[i][4] == 1 else 1
            yield actions[i : i + width]
            i += width

    def neighbour(self, kind, stage):
        """Stage that the result goes to, or None at an end of the pipe."""
        per = self.s.stages // self.s.pipes
        if kind in ("F", "SEND_F"):
            return None if stage % per == per - 1 else stage + 1
        return None if stage % per == 0 else stage - 1

    def crosses(self, a, b):
        return self.s.rank_of[a] != self.s.rank_of[b] and (
            self.x is not None or self.s.has_transfers
        )

    def seconds(self, kind, stage):
        table = {
            "F": self.t.forward_s, "I": self.t.backward_s, "W": self.t.weight_s,
            "B": self.t.whole_s,
        }  # fmt: skip
        return float(table[kind][stage])

    def rank(self, rank):
        for group in self.rows(rank):
            kind = group[0][1]
            if kind in ("F", "I", "W", "B"):
                yield from self.compute(rank, group)
            elif kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD"):
                self.data(rank, *group[0][:3])
            else:
                yield from self.written(rank, *group[0][:4])

    def compute(self, rank, group):
        for _, kind, stage, mb, _ in group:
            per = self.s.stages // self.s.pipes
            end = 0 if kind == "F" else per - 1
            if kind != "W" and stage % per != end:
                yield self.event(self.input, ("F" if kind == "F" else "B", stage, mb))
            if stage in self.gathered:
                yield self.gathered[stage]
        for at, *_ in group:
            self.begin[at] = self.env.now
        self.take(rank, group)
        lengths = sorted(self.seconds(kind, stage) for _, kind, stage, _, _ in group)
        total = lengths[-1]
        if len(lengths) > 1:
            total = lengths[-1] + (1.0 - self.t.overlap_frac) * lengths[0]
        yield self.env.timeout(total)
        self.give(rank, group)
        waits = []
        for at, kind, stage, mb, _ in group:
            self.finish[at] = self.env.now
            target = None if kind == "W" else self.neighbour(kind, stage)
            if target is None:
                continue
            slot = self.event(self.input, ("F" if kind == "F" else "B", target, mb))
            if not self.crosses(stage, target):
                slot.succeed()
            elif not self.s.has_transfers:
                free = self.env.event()
                self.env.process(self.move(at, stage, target, slot, free, ()))
                waits.append(free)
        if self.x is not None and self.x.blocking:
            for free in waits:
                yield free

    def move(self, at, stage, target, slot, free, needs):
        yield from needs
        a, b = int(self.s.rank_of[stage]), int(self.s.rank_of[target])
        link = a * self.s.ranks + b
        if self.x is not None and self.x.links is not None:
            link = int(self.x.links[a, b])
        resource = self.links.setdefault(link, simpy.Resource(self.env))
        edge = min(stage, target)
        occupy = late = 0.0
        if self.x is not None:
            occupy = float(self.x.bytes_each[edge] / self.x.bytes_per_s[edge])
            late = float(self.x.latency_s[edge])
        with resource.request() as turn:
            yield turn
            self.sent[at] = self.env.now
            yield self.env.timeout(occupy)
        free.succeed()
        yield self.env.timeout(late)
        self.arrived[at] = self.env.now
        slot.succeed()

    def written(self, rank, at, kind, stage, mb):
        self.begin[at] = self.finish[at] = self.env.now
        way = kind[-1]
        if kind.startswith("SEND"):
            target = self.neighbour(kind, stage)
            free = self.env.event()
            posted = self.event(self.come, (way, target, mb))
            slot = self.event(self.input, (way, target, mb))
            self.env.process(self.move(at, stage, target, slot, free, (posted,)))
            if self.x is not None and self.x.blocking and posted.triggered:
                yield free
        else:
            self.event(self.come, (way, stage, mb)).succeed()

    def data(self, rank, at, kind, stage):
        self.begin[at] = self.finish[at] = self.env.now
        if kind == "RESHARD":
            if self.mem is not None:
                self.level[rank] -= self.mem.gathered_bytes[stage]
            return
        done = self.env.event()
        if kind == "UNSHARD":
            self.gathered[stage] = done
            if self.mem is not None:
                self.level[rank] += self.mem.gathered_bytes[stage]
                self.peak[rank] = max(self.peak[rank], self.level[rank])
        table = (
            {} if self.d is None else {"UNSHARD": self.d.gather_s, "REDUCE_GRAD": self.d.reduce_s}
        )
        seconds = float(table[kind][stage]) if table else 0.0
        self.env.process(self.aside(rank, at, seconds, done))

    def aside(self, rank, at, seconds, done):
        with self.side[rank].request() as turn:
            yield turn
            self.begin[at] = self.env.now
            yield self.env.timeout(seconds)
            self.finish[at] = self.env.now
        done.succeed()

    def take(self, rank, group):
        if self.mem is None:
            return
        self.level[rank] += sum(
            float(self.mem.activation_bytes[stage]) for _, kind, stage, _, _ in group if kind == "F"
        )
        working = max(float(self.mem.working_bytes[stage]) for _, _, stage, _, _ in group)
        self.peak[rank] = max(self.peak[rank], self.level[rank] + working)

    def give(self, rank, group):
        if self.mem is None:
            return
        share = {"F": 0.0, "B": 1.0, "I": self.mem.input_release_frac}
        share["W"] = 1.0 - share["I"]
        for _, kind, stage, _, _ in group:
            self.level[rank] -= share[kind] * float(self.mem.activation_bytes[stage])
