// An API server in this process, for calls through undici: objects, their versions, watches that lag, end, repeat and
// lose events, and calls that are refused, cut or carried out late. What it does with a Binding is what Kubernetes does
// (pkg/registry/core/pod/storage, setPodNodeAndMetadata): refused for another UID, for a pod that is being deleted, and
// for one that has a node; else node and annotations are written at once.
import type { V1Binding, V1Eviction, V1Lease, V1Node, V1Pod } from '@kubernetes/client-node';
import { Dispatcher } from 'undici';
import type { ApiConfig } from '../../../../src/kube/config.ts';

export type Random = () => number;
export const oneOf = <T>(random: Random, all: readonly T[]): T => all[Math.floor(random() * all.length)] as T;

type Kind = 'pods' | 'nodes' | 'leases' | 'poddisruptionbudgets';
type Stored = { metadata?: { name?: string; namespace?: string; uid?: string; resourceVersion?: string } };
type Change = { readonly version: number; readonly kind: Kind; readonly before?: Stored; readonly after?: Stored };
type Answer = { readonly status: number; readonly body: object };

/** A call that a replica has made. `isOpen`: it waits for its answer. */
type Call = {
  readonly replica: string;
  readonly method: string;
  readonly url: URL;
  readonly body: string;
  isOpen: boolean;
  answer(answer: Answer): void;
  begin(): void;
  send(event: object): void;
  end(): void;
  cut(): void;
};
type Watch = {
  readonly call: Call;
  readonly kind: Kind;
  version: number;
  isStalled: boolean;
  losesNext: boolean;
  last?: object;
};

export type ModelApi = {
  configOf(replica: string): ApiConfig;
  readonly pods: ReadonlyMap<string, V1Pod>;
  /** Calls go wrong. */
  faulty: boolean;
  put(kind: Kind, object: V1Pod | V1Node | V1Lease): void;
  remove(kind: Kind, key: string): void;
  get<T extends Stored>(kind: Kind, key: string): T | undefined;
  /** Sends to all watches what they do not lag behind. */
  pump(): void;
  /** As an API server does about once a minute: the version that a watch has reached. */
  bookmark(): void;
  /** An open watch of objects of these kinds. */
  watchAtRandom(kinds: readonly Kind[]): Watch | undefined;
  stall(watch: Watch): void;
  catchUp(): void;
  repeat(watch: Watch): void;
  lose(watch: Watch): void;
  /** Ends all watches of a replica; `isForgotten`: they cannot continue where they were. */
  hangUp(replica: string, isForgotten?: boolean): void;
  /** Bindings that may still be written although their caller is gone. */
  bindingsOf(replica: string): number;
  /** The process is gone; what it has asked for is still done. */
  abandon(replica: string): void;
};

const KINDS: readonly Kind[] = ['pods', 'nodes', 'leases', 'poddisruptionbudgets'];
const keyOf = ({ metadata }: Stored): string => `${metadata?.namespace ?? ''}/${metadata?.name ?? ''}`;
const clone = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T;
const status = (code: number, message: string): Answer => ({
  status: code,
  body: { kind: 'Status', status: code < 300 ? 'Success' : 'Failure', message, code },
});

/** As of the API server: `a.b!=x,a.c=`. */
function selects(selector: string, object: Stored | undefined): boolean {
  if (!object) return false;
  return selector.split(',').every((part) => {
    const [, path = '', operator, value] = /^([^=!]*)(!?=)(.*)$/.exec(part) ?? [];
    if (operator === undefined) return true;
    const found = path.split('.').reduce((at: unknown, key) => (at as Record<string, unknown>)?.[key], object) ?? '';
    return (String(found) === value) === (operator === '=');
  });
}

export function createModelApi(random: Random): ModelApi {
  const objects: Record<Kind, Map<string, Stored>> = {
    ...{ pods: new Map(), nodes: new Map(), leases: new Map(), poddisruptionbudgets: new Map() },
  };
  const changes: Change[] = [];
  const watches = new Set<Watch>();
  /** Bindings that were asked for and are not decided. */
  const binding = new Set<Call>();
  const open = new Set<Call>();
  /** Watches cannot continue before it. */
  let oldest = 0;
  let faulty = false;

  const write = (kind: Kind, key: string, after: Stored | undefined): void => {
    const before = objects[kind].get(key);
    const version = changes.length + 1;
    if (after) {
      after.metadata = { ...after.metadata, resourceVersion: String(version) };
      objects[kind].set(key, clone(after));
    } else objects[kind].delete(key);
    changes.push({ version, kind, ...(before && { before }), ...(after && { after: clone(after) }) });
  };

  const bind = (key: string, body: V1Binding): Answer => {
    const pod = objects.pods.get(key) as V1Pod | undefined;
    if (!pod) return status(404, 'no such pod');
    if (body.metadata?.uid !== pod.metadata?.uid) return status(409, 'another UID');
    if (pod.metadata?.deletionTimestamp) return status(409, 'being deleted');
    if (pod.spec?.nodeName) return status(409, 'already assigned');
    const annotations = { ...pod.metadata?.annotations, ...body.metadata?.annotations };
    const spec = { containers: [], ...pod.spec, nodeName: body.target.name ?? '' };
    write('pods', key, { ...pod, metadata: { ...pod.metadata, annotations }, spec } as Stored);
    return status(201, '');
  };
  const evict = (key: string, { deleteOptions }: V1Eviction): Answer => {
    const pod = objects.pods.get(key) as V1Pod | undefined;
    const { uid, resourceVersion } = deleteOptions?.preconditions ?? {};
    if (!pod) return status(404, 'no such pod');
    if (uid !== undefined && uid !== pod.metadata?.uid) return status(409, 'another UID');
    if (resourceVersion !== undefined && resourceVersion !== pod.metadata?.resourceVersion)
      return status(409, 'another version');
    write('pods', key, { ...pod, metadata: { ...pod.metadata, deletionTimestamp: '2026-01-01T00:00:00Z' } } as Stored);
    return status(201, '');
  };
  const carryOut = ({ method, url, body }: Call): Answer => {
    const [, namespace, plural = '', name, verb] =
      /^(?:\/api\/v1|\/apis\/[^/]+\/[^/]+)(?:\/namespaces\/([^/]+))?\/([^/]+)(?:\/([^/]+))?(?:\/([^/]+))?$/.exec(
        url.pathname,
      ) ?? [];
    const key = `${namespace ?? ''}/${name}`;
    const kind = KINDS.find((one) => one === plural);
    if (verb === 'binding') return bind(key, JSON.parse(body) as V1Binding);
    if (verb === 'eviction') return evict(key, JSON.parse(body) as V1Eviction);
    if (method !== 'GET' && plural === 'events') return status(201, '');
    if (!kind) return status(404, 'no such kind');
    if (name === undefined) {
      const selector = url.searchParams.get('fieldSelector') ?? '';
      const items = [...objects[kind].values()].filter(
        (one) => selects(selector, one) && (namespace === undefined || one.metadata?.namespace === namespace),
      );
      return { status: 200, body: { metadata: { resourceVersion: String(changes.length) }, items } };
    }
    const found = objects[kind].get(key);
    if (!found) return status(404, 'no such object');
    if (method === 'PATCH') {
      const { metadata } = JSON.parse(body) as V1Pod;
      const annotations = { ...(found as V1Pod).metadata?.annotations, ...metadata?.annotations };
      write(kind, key, { ...found, metadata: { ...found.metadata, annotations } } as Stored);
    }
    return { status: 200, body: objects[kind].get(key) ?? {} };
  };

  const watch = (call: Call): void => {
    const version = Number(call.url.searchParams.get('resourceVersion'));
    const kind = KINDS.find((one) => call.url.pathname.endsWith(`/${one}`));
    if (version < oldest || !kind) {
      call.answer(status(410, 'too old'));
      return;
    }
    call.begin();
    watches.add({ call, kind, version, isStalled: false, losesNext: false });
  };

  const receive = (call: Call): void => {
    open.add(call);
    const isBinding = call.url.pathname.endsWith('/binding');
    if (isBinding) binding.add(call);
    const done = () => {
      open.delete(call);
      binding.delete(call);
    };
    const after = (ms: number, run: () => void) =>
      setTimeout(() => {
        run();
        done();
      }, ms);
    const soonMs = 1 + Math.floor(random() * 20);
    if (call.url.searchParams.get('watch') === 'true') return void after(soonMs, () => watch(call));
    const fate = faulty && random() < 0.3 ? oneOf(random, FATES) : 'answered';
    if (fate === 'answered') after(soonMs, () => call.answer(carryOut(call)));
    if (fate === 'refused') after(soonMs, () => call.answer(status(oneOf(random, [403, 429, 500, 503]), 'not today')));
    if (fate === 'cut-before') after(soonMs, () => call.cut());
    if (fate === 'cut-after')
      after(soonMs, () => {
        carryOut(call);
        call.cut();
      });
    if (fate === 'cut-late') setTimeout(() => call.cut(), soonMs);
    if (fate === 'late' || fate === 'cut-late')
      after(1000 + Math.floor(random() * 58_000), () => call.answer(carryOut(call)));
  };

  return {
    configOf(replica) {
      const dispatcher = new ModelDispatcher(replica, receive);
      return {
        getCurrentCluster: () => ({ server: 'http://api' }),
        applySecurityAuthentication: async (context) => context.setDispatcher(dispatcher as never),
        createDispatcherOptions: () => ({ type: 'none' }),
      };
    },
    pods: objects.pods as ReadonlyMap<string, V1Pod>,
    get faulty() {
      return faulty;
    },
    set faulty(value) {
      faulty = value;
    },
    put: (kind, object) => write(kind, keyOf(object as Stored), clone(object) as Stored),
    remove: (kind, key) => write(kind, key, undefined),
    get: <T extends Stored>(kind: Kind, key: string) => {
      const found = objects[kind].get(key);
      return found && (clone(found) as T);
    },
    pump() {
      for (const one of watches) {
        if (!one.call.isOpen) watches.delete(one);
        else if (!one.isStalled) deliver(one, changes);
      }
    },
    bookmark() {
      for (const one of watches)
        if (!one.isStalled && one.version === changes.length)
          one.call.send({ type: 'BOOKMARK', object: { metadata: { resourceVersion: String(one.version) } } });
    },
    watchAtRandom(kinds) {
      const all = [...watches].filter(({ kind }) => kinds.includes(kind));
      return all.length === 0 ? undefined : oneOf(random, all);
    },
    stall(one) {
      one.isStalled = true;
    },
    catchUp() {
      for (const one of watches) one.isStalled = false;
    },
    repeat: (one) => one.last && one.call.isOpen && one.call.send(one.last),
    lose(one) {
      one.losesNext = true;
    },
    hangUp(replica, isForgotten = false) {
      if (isForgotten) oldest = changes.length;
      for (const one of watches) {
        if (one.call.replica !== replica) continue;
        one.call.end();
        watches.delete(one);
      }
    },
    bindingsOf: (replica) => [...binding].filter((call) => call.replica === replica).length,
    abandon(replica) {
      for (const call of open) if (call.replica === replica) call.cut();
      for (const one of watches) if (one.call.replica === replica) one.call.cut();
    },
  };
}

const FATES = ['refused', 'cut-before', 'cut-after', 'cut-late', 'late'] as const;

function deliver(watch: Watch, changes: readonly Change[]): void {
  const selector = watch.call.url.searchParams.get('fieldSelector') ?? '';
  for (; watch.version < changes.length; watch.version += 1) {
    const { kind, version, before, after } = changes[watch.version] as Change;
    if (kind !== watch.kind) continue;
    const [was, is] = [selects(selector, before), selects(selector, after)];
    if (!was && !is) continue;
    const object = is ? after : { ...before, metadata: { ...before?.metadata, resourceVersion: String(version) } };
    watch.last = { type: is ? (was ? 'MODIFIED' : 'ADDED') : 'DELETED', object };
    if (!watch.losesNext) watch.call.send(watch.last);
    watch.losesNext = false;
  }
}

/** Calls of undici without a connection. */
class ModelDispatcher extends Dispatcher {
  readonly #replica: string;
  readonly #receive: (call: Call) => void;
  constructor(replica: string, receive: (call: Call) => void) {
    super();
    [this.#replica, this.#receive] = [replica, receive];
  }

  override dispatch(options: Dispatcher.DispatchOptions, handler: Dispatcher.DispatchHandler): boolean {
    const fail = (reason: Error) => {
      if (!call.isOpen) return;
      call.isOpen = false;
      handler.onResponseError?.(controller, reason);
    };
    const controller: Dispatcher.DispatchController = {
      ...{ aborted: false, paused: false, reason: null, rawHeaders: [], rawTrailers: [] },
      pause: () => undefined,
      resume: () => undefined,
      abort: fail,
    };
    const begin = (code = 200) => {
      if (call.isOpen) handler.onResponseStart?.(controller, code, { 'content-type': 'application/json' }, '');
    };
    const write = (text: string) => {
      if (call.isOpen) handler.onResponseData?.(controller, Buffer.from(text));
    };
    const end = () => {
      if (!call.isOpen) return;
      call.isOpen = false;
      handler.onResponseEnd?.(controller, {});
    };
    const call: Call = {
      replica: this.#replica,
      method: options.method,
      url: new URL(options.path, 'http://api'),
      body: String(options.body ?? ''),
      isOpen: true,
      begin,
      end,
      send: (event) => write(`${JSON.stringify(event)}\n`),
      answer(given) {
        begin(given.status);
        write(JSON.stringify(given.body));
        end();
      },
      cut: () => fail(Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' })),
    };
    handler.onRequestStart?.(controller, {});
    if (call.isOpen) this.#receive(call);
    return true;
  }
}
