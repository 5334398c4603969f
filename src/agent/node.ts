// The node half: what happens at each sample, in order: read the ledgers, attribute, compare, publish, act, teach the pages.
// Owns the state that lives from sample to sample; every decision is made by the pure rooms it calls.
import { statSync } from 'node:fs';
import { countedBytes, type Placed, place } from '../placement/place.ts';
import type { CardShare } from '../request/request.ts';
import { NOBODY_KNOWN, ownerOfProcess, remember } from './attribution/attribute.ts';
import { unifiedPath } from './attribution/cgroup.ts';
import { compare, type NodeState } from './compare.ts';
import type { AgentConfiguration } from './configuration.ts';
import { createEnforcer } from './enforcement/enforcer.ts';
import { type ActionRecord, openAudit } from './enforcement/record.ts';
import { removeGroup, unifiedMount } from './enforcement/targets.ts';
import { feedbackOf, type Round, roundOf } from './feedback.ts';
import { freeName, type Grant, groupOfGrant, plainName } from './grants/grant.ts';
import { type LiveGrant, openRegistry } from './grants/registry.ts';
import { givenBack, resized, toldBytes } from './grants/resize.ts';
import { advance, NO_TOTALS } from './integrals.ts';
import { createKillBook } from './kills.ts';
import type { Feedback, Native } from './native.ts';
import { openProfiles } from './profiles.ts';
import type { Sample, SampledProcess } from './sample.ts';
import { type NameOf, type SelfView, staleView, type View, viewOf } from './view.ts';

export type GrantAsk = {
  readonly name: string;
  readonly container: string;
  readonly shares: readonly CardShare[];
  readonly gpuUuids: readonly string[];
  readonly isolateMemory: boolean;
  readonly owner: { readonly pid: number; readonly startTicks: number };
};

/** `later`: the same question may be answered otherwise in a moment. */
export type Refusal = { readonly refused: string; readonly later?: boolean };

export type Node = {
  onSample(sample: Sample): void;
  /** To be asked every second or so: what is published must not outlive the samples that it tells of. */
  lookAtAge(): void;
  readonly view: () => View | undefined;
  grant(ask: GrantAsk): LiveGrant | Refusal;
  resize(id: string, memoryBytesPerCard: number): LiveGrant | Refusal;
  release(id: string): boolean;
  grantFiles(id: string): LiveGrant | undefined;
  /** What was done to a container, by its id, its pod's name or namespace/pod; also after its end. */
  actionsOn(who: string): readonly ActionRecord[];
  close(): void;
};

export type NodeHooks = {
  readonly onView: (view: View) => void;
  readonly onActions: (records: readonly ActionRecord[]) => void;
  readonly onProblem: (text: string) => void;
  readonly onInterval: (intervalMs: number) => void;
  readonly samplersAbandoned: () => number;
  readonly nameOf: NameOf;
  readonly version: string;
  readonly revision: string;
  /** A clock that nobody sets, in milliseconds. */
  readonly clock: () => number;
};

/** Samples without its owner and without any process, after which a plain grant is taken down. */
const SAMPLES_UNTIL_ENDED = 2;
/** One silence abandons a sampler; the next one has had its time to answer, too. */
const SILENCES_UNTIL_STALE = 2;

export function openNode(configuration: AgentConfiguration, native: Native, hooks: NodeHooks): Node {
  const { enforcement } = configuration;
  const profiles = openProfiles(
    configuration.stateFolder,
    { cuda: configuration.cudaLibrary, nvml: configuration.nvmlLibrary },
    hooks.onProblem,
  );
  const registry = openRegistry(configuration.stateFolder, native, profiles.of, hooks.onProblem);
  const audit = openAudit(configuration.stateFolder, hooks.onProblem);
  const enforcer = createEnforcer(registry, native, audit, enforcement, Date.now);
  const kills = createKillBook();
  const ownPidNamespace = statSync('/proc/self/ns/pid').ino;
  let known = NOBODY_KNOWN;
  let totals = NO_TOTALS;
  let state: NodeState | undefined;
  let view: View | undefined;
  let sampledAt = 0;
  const staleAfterMs = SILENCES_UNTIL_STALE * configuration.silenceMs;
  const isStale = () => state !== undefined && hooks.clock() - sampledAt > staleAfterMs;
  let measuring = false;
  let measuredOnce = false;
  const rounds = new Map<string, Round>();
  const written = new Map<string, string>();
  const ending = new Map<string, number>();
  const justResized = new Map<string, number>();
  const failures = new Map<string, number>();

  const isAlive = (pid: number, startTicks: number): boolean => {
    const facts = native.readProcess(pid);
    return facts !== undefined && facts.state !== 'Z' && facts.startTicks === startTicks;
  };

  const measure = async (sample: Sample): Promise<void> => {
    if (!configuration.calibrate || measuring || sample.problem !== undefined) return;
    measuring = true;
    try {
      const healthy = sample.cards.filter((card) => card.healthy).map((card) => card.uuid);
      if (await profiles.measure(healthy, sample.driverVersion)) registry.refreshProfiles();
      measuredOnce = true;
    } finally {
      measuring = false;
    }
  };

  const teach = (sample: Sample, live: LiveGrant, after: Round, processes: readonly SampledProcess[]) => {
    const cards = live.grant.cards.map((granted) => sample.cards.find((card) => card.uuid === granted.gpuUuid));
    const entries = feedbackOf({
      before: rounds.get(live.grant.id),
      after,
      sampledNs: sample.bootNs,
      processes,
      cardIndex: cards.map((card) => card?.index),
      listsComplete: cards.every((card) => card?.lists.includes('compute') ?? false),
    });
    const key = (entry: Feedback) => `${live.grant.id} ${entry.slot} ${entry.card}`;
    const text = (entry: Feedback) =>
      `${entry.stamp} ${entry.residualBytes} ${entry.releasedBytes} ${entry.signature} ${entry.deadStamp}`;
    const news = entries.filter((entry) => written.get(key(entry)) !== text(entry));
    if (news.length > 0) registry.writeFeedback(live, news);
    for (const entry of news) written.set(key(entry), text(entry));
  };

  const takeDown = (id: string): boolean => {
    const entry = registry.get(id);
    if (!entry) return false;
    registry.remove(id);
    removeGroup(entry.grant, unifiedMount());
    rounds.delete(id);
    ending.delete(id);
    justResized.delete(id);
    for (const key of written.keys()) if (key.startsWith(`${id} `)) written.delete(key);
    return true;
  };

  /** Grants that were made smaller come down to what their holders have, and to their new size in the end. */
  const shrink = (sample: Sample, grants: readonly Grant[], processesOf: (id: string) => readonly SampledProcess[]) => {
    for (const grant of grants) {
      // A sample that was under way tells of the time before.
      const resizedNs = justResized.get(grant.id);
      if (resizedNs !== undefined && sample.bootNs <= resizedNs) continue;
      justResized.delete(grant.id);
      // By the driver's word: a ledger could claim forever what a smaller grant took away.
      const after = grant.cards.map((card) => {
        const bytes = toldBytes(card.gpuUuid, sample, processesOf(grant.id));
        return bytes === undefined ? card : givenBack(card, bytes);
      });
      if (after.some((card, position) => card !== grant.cards[position])) registry.resize(grant.id, after);
    }
  };

  /** Grants whose owner is gone and whose processes are, too: nothing of theirs stays behind. */
  const sweep = (processesOf: (id: string) => readonly SampledProcess[]) => {
    for (const { grant } of registry.list()) {
      const over =
        !isAlive(grant.owner.pid, grant.owner.startTicks) && processesOf(grant.id).every((process) => process.gone);
      const samples = over ? (ending.get(grant.id) ?? 0) + 1 : 0;
      ending.set(grant.id, samples);
      if (samples >= SAMPLES_UNTIL_ENDED) takeDown(grant.id);
    }
  };

  const selfView = (sample: Sample): SelfView => ({
    up: sample.problem === undefined && sample.cards.length > 0,
    problem: sample.problem ?? (sample.cards.length === 0 ? 'the driver shows no card' : undefined),
    mode: enforcement.mode,
    version: hooks.version,
    revision: hooks.revision,
    nodeVersion: process.version,
    samplersAbandoned: hooks.samplersAbandoned(),
    decisions: kills.decisions(),
    failures: Object.fromEntries(failures),
  });

  return {
    onSample(sample) {
      const live = registry.list();
      const roots = live.map(({ grant }) => ({
        id: grant.id,
        ...grant.owner,
        alive: isAlive(grant.owner.pid, grant.owner.startTicks),
        group: groupOfGrant(grant),
      }));
      const ids = new Set(live.map(({ grant }) => grant.id));
      const owners = new Map(sample.processes.map((process) => [process, ownerOfProcess(process, roots, ids, known)]));
      const ownerOf = (process: SampledProcess) => owners.get(process) ?? { kind: 'host' as const };
      const fresh = live.map((entry) => ({ live: entry, reading: registry.readLedger(entry) }));
      state = compare(
        sample,
        fresh.map(({ live: entry, reading }) => ({
          grant: entry.grant,
          ledger: reading,
          untouched: registry.isUntouched(entry),
        })),
        ownerOf,
        enforcement,
      );
      totals = advance(totals, state, ownerOf);
      kills.see(state);
      for (const [reason, count] of Object.entries(state.failures))
        failures.set(reason, (failures.get(reason) ?? 0) + count);

      const records = enforcer.act(state);
      kills.add(records);
      const byGrant = Map.groupBy(sample.processes, (process) => {
        const owner = ownerOf(process);
        return owner.kind === 'grant' ? owner.id : undefined;
      });
      const processesOf = (id: string) => byGrant.get(id) ?? [];
      for (const { live: entry, reading } of fresh) {
        const round = roundOf(reading, { ownPidNamespace, isAlive });
        teach(sample, entry, round, processesOf(entry.grant.id));
        // Samples may queue up: only a reading that this one came after is done with.
        const before = rounds.get(entry.grant.id);
        if (!before || sample.bootNs > before.ledger.readNs) rounds.set(entry.grant.id, round);
        registry.touch(entry);
      }
      shrink(
        sample,
        live.map(({ grant }) => grant),
        processesOf,
      );
      known = remember(sample.processes, ownerOf);
      sweep(processesOf);

      sampledAt = hooks.clock();
      view = viewOf(state, totals, kills.totals(), audit.recent(), selfView(sample), hooks.nameOf);
      hooks.onView(view);
      if (records.length > 0) hooks.onActions(records);
      const urgent = state.containers.some(
        (container) => container.verdict.severity !== 'within' || container.cards.some((card) => card.bypassBytes > 0),
      );
      hooks.onInterval(urgent ? configuration.urgentIntervalMs : configuration.intervalMs);
      void measure(sample);
    },

    lookAtAge() {
      if (!view?.self.up || !isStale()) return;
      view = staleView(view, hooks.clock() - sampledAt);
      hooks.onView(view);
    },

    view: () => view,

    grant(ask) {
      if (!state) return { refused: 'the driver has not been read yet', later: true };
      if (isStale()) return { refused: 'the driver does not answer: there is no fresh sample', later: true };
      if (state.sample.problem !== undefined) return { refused: `there is no card: ${state.sample.problem}` };
      const owner = native.readProcess(ask.owner.pid);
      if (owner?.startTicks !== ask.owner.startTicks) {
        return { refused: `no process ${ask.owner.pid} with start time ${ask.owner.startTicks} on this node` };
      }
      const live = registry.list();
      const placed: Placed = place(
        ask.shares,
        state.devices.map(({ card }) => {
          const granted = live.flatMap(({ grant }) => grant.cards.filter((entry) => entry.gpuUuid === card.uuid));
          return {
            gpuUuid: card.uuid,
            model: card.name,
            usableBytes: Math.max(0, (card.totalBytes ?? 0) - (card.reservedBytes ?? 0)),
            healthy: card.healthy,
            grantedBytes: granted.reduce((sum, entry) => sum + countedBytes(entry), 0),
            grantedCoresPercent: granted.reduce((sum, entry) => sum + entry.coresPercent, 0),
            tenants: granted.length,
          };
        }),
        {
          placement: configuration.placement,
          mostTenantsPerCard: configuration.mostTenantsPerCard,
          gpuUuids: ask.gpuUuids,
        },
      );
      if (!placed.ok) return { refused: placed.reason };
      // What a context costs must be in the page before the first one is made.
      const unmeasured = placed.cards.some(({ gpuUuid }) => profiles.of(gpuUuid).contextBytes === 0);
      if (configuration.calibrate && unmeasured && !measuredOnce) {
        return { refused: 'the cards are still being measured', later: true };
      }
      return registry.create({
        namespace: 'local',
        pod: freeName(plainName(ask.name), (name) => live.some(({ grant }) => grant.pod === name)),
        container: plainName(ask.container),
        createdMs: Date.now(),
        cards: placed.cards,
        isolateMemory: ask.isolateMemory,
        owner: { ...ask.owner, cgroup: unifiedPath(owner.cgroup) ?? '' },
      });
    },

    resize(id, memoryBytesPerCard) {
      const entry = registry.get(id);
      if (!entry) return { refused: `no grant ${id} on this node` };
      for (const own of entry.grant.cards) {
        const device = state?.devices.find(({ card }) => card.uuid === own.gpuUuid);
        const usable = (device?.card.totalBytes ?? 0) - (device?.card.reservedBytes ?? 0);
        const others = registry
          .list()
          .flatMap(({ grant }) => (grant.id === id ? [] : grant.cards.filter((card) => card.gpuUuid === own.gpuUuid)));
        const left = usable - others.reduce((sum, card) => sum + countedBytes(card), 0);
        if (memoryBytesPerCard > left)
          return { refused: `${own.gpuUuid} has ${left} bytes left for it, ${memoryBytesPerCard} are asked for` };
      }
      const live = registry.resize(
        id,
        entry.grant.cards.map((card) => resized(card, memoryBytesPerCard)),
      );
      justResized.set(id, registry.readLedger(live).readNs);
      return live;
    },

    release: takeDown,
    grantFiles: (id) => registry.get(id),
    actionsOn: (who) =>
      audit
        .recent()
        .filter(({ grantId, namespace, pod }) => who === grantId || who === pod || who === `${namespace}/${pod}`),
    close: () => registry.close(),
  };
}
