// The CSI node driver: the kubelet calls it before the first container of a pod starts and after the last one has
// ended. It decides when a volume may be refused; publish-pod.ts decides whether a pod gets one, and its content.
// Four rules keep pods able to start and to end:
//   - a volume that was published once is never refused again: a restarted kubelet publishes all of them again, and
//     older kubelets (seen with 1.20, not with 1.36) cannot end a pod whose volume is refused then;
//   - a first publish that fails leaves nothing behind;
//   - unpublishing needs neither the API server nor stored state, and succeeds for a volume that is not there;
//   - calls for one pod run one after the other; calls for other pods do not wait for them.

import { join, normalize } from 'node:path';
import {
  type handleUnaryCall,
  type ServerErrorResponse,
  type ServerUnaryCall,
  type ServiceDefinition,
  status,
} from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { CSI_DRIVER } from '../../../api/csi-volume.ts';
import type { Logger } from '../../../common/logger.ts';
import type { Result } from '../../../common/result.ts';
import { loadNative } from '../../os/addon.ts';
import type { PublishResult } from '../../snapshot/snapshot.ts';
import { ownerOf, type PublishRequest, parsePublish, type RequestedVolume, type UnpublishRequest } from './request.ts';
import { type Endpoint, keepListening } from './sockets.ts';
import { isPublished, markPublished, unmountVolume } from './volume.ts';

export type { RequestedVolume } from './request.ts';

/** Why a volume is refused; the text becomes an Event of the pod. */
export class VolumeRefused extends Error {
  /** It may succeed later without a change to the pod. */
  readonly later: boolean;

  constructor(text: string, { later = false } = {}) {
    super(text);
    this.later = later;
  }
}

export type Publisher = {
  /**
   * `mounted` false: mounts the volume and writes its pages, or throws (VolumeRefused for a refusal); an earlier
   * attempt may have left an incomplete volume. `mounted` true: updates what it can; the volume stays published
   * whatever happens.
   */
  publish(volume: RequestedVolume & { readonly mounted: boolean }): Promise<void>;
  /**
   * Called before a volume is unmounted, so that descriptors can be closed; also after a first publish that failed, and
   * for unknown volumes. Must not need the API server.
   */
  unpublish(volume: { readonly podUid: string; readonly target: string }): void;
};

type CsiOptions = {
  readonly kubeletRoot: string;
  readonly nodeName: string;
  readonly publisher: Publisher;
  /** The result of each first publish of a volume. */
  readonly onResult: (result: PublishResult) => void;
  readonly log: Logger;
};

type Csi = {
  /** The kubelet has registered the driver, whose sockets are there. */
  connected(): boolean;
  close(): Promise<void>;
};

/** Serves until it is closed; pods can neither start nor end with a volume while it does not. */
export async function startCsi(options: CsiOptions): Promise<Csi> {
  const { nodeName, log } = options;
  const kubeletRoot = normalize(options.kubeletRoot).replace(/(?<=.)\/$/, '');
  const { publish, unpublish } = volumes({ ...options, kubeletRoot });
  const socket = join(kubeletRoot, 'plugins', CSI_DRIVER, 'csi.sock');
  const identity = {
    GetPluginInfo: answer(() => ({ name: CSI_DRIVER, vendor_version: '1' })),
    GetPluginCapabilities: answer(() => ({})),
    Probe: answer(() => ({})),
  };
  const node = {
    NodeGetInfo: answer(() => ({ node_id: nodeName })),
    NodeGetCapabilities: answer(() => ({})),
    NodePublishVolume: answer(publish),
    NodeUnpublishVolume: answer(unpublish),
  };
  let isRegistered = false;
  const registration = {
    GetInfo: answer(() => ({ type: 'CSIPlugin', name: CSI_DRIVER, endpoint: socket, supported_versions: ['1.0.0'] })),
    NotifyRegistrationStatus: answer(
      ({ plugin_registered: good, error }: { plugin_registered: boolean; error: string }) => {
        isRegistered = good;
        if (!good) log.warn(`the kubelet does not register the CSI driver: ${error}`);
        return {};
      },
    ),
  };
  // The kubelet calls the driver as soon as it finds its registration.
  const endpoints: Endpoint[] = [
    {
      path: socket,
      services: [
        [serviceNamed('csi.v1.Identity'), identity],
        [serviceNamed('csi.v1.Node'), node],
      ],
    },
    {
      path: join(kubeletRoot, 'plugins_registry', `${CSI_DRIVER}-reg.sock`),
      services: [[serviceNamed('pluginregistration.Registration'), registration]],
    },
  ];
  const { isThere, close } = await keepListening(endpoints, log);
  return { connected: () => isRegistered && isThere(), close };
}

const protocols = ['csi.proto', 'registration.proto'].map((name) => join(import.meta.dirname, name));
const definitions = loadSync(protocols, { keepCase: true, defaults: true });
const serviceNamed = (name: string) => definitions[name] as unknown as ServiceDefinition;

/** A status of the call, with a text that begins with our name wherever it is shown. */
class Answer extends Error {
  readonly code: status;
  readonly details: string;

  constructor(code: status, text: string) {
    super(text);
    this.code = code;
    this.details = `cotenant: ${text}`;
  }
}

type Call<Q> = Pick<ServerUnaryCall<Q, object>, 'cancelled'>;

function answer<Q>(work: (request: Q, call: Call<Q>) => object | Promise<object>): handleUnaryCall<Q, object> {
  return async (call, reply) => {
    try {
      reply(null, await work(call.request, call));
    } catch (error) {
      reply(error instanceof Answer ? error : unexpected(error));
    }
  };
}

/** UNAVAILABLE: the kubelet assumes that the volume may be mounted, retries, and unpublishes it in the end. */
function unexpected(error: unknown): Answer & Partial<ServerErrorResponse> {
  return new Answer(status.UNAVAILABLE, error instanceof Error ? error.message : String(error));
}

function volumes({ kubeletRoot, publisher, onResult, log }: CsiOptions) {
  const native = loadNative();
  const inTurn = turns();

  const takeDown = (podUid: string, target: string): void => {
    try {
      publisher.unpublish({ podUid, target });
    } catch (error) {
      log.warn(`the volume of pod ${podUid} is taken down all the same: ${(error as Error).message}`);
    }
    unmountVolume(native, target);
  };

  const publishFirst = async (volume: RequestedVolume): Promise<void> => {
    try {
      await publisher.publish({ ...volume, mounted: false });
      markPublished(native, volume.target);
      onResult('published');
    } catch (error) {
      const named = `pod ${volume.namespace}/${volume.pod}`;
      try {
        takeDown(volume.podUid, volume.target);
      } catch (left) {
        log.warn(`the refused volume of ${named} is not gone: ${(left as Error).message}`);
      }
      if (error instanceof VolumeRefused) {
        onResult(error.later ? 'pending' : 'refused');
        throw new Answer(error.later ? status.UNAVAILABLE : status.FAILED_PRECONDITION, error.message);
      }
      const text = `the volume of ${named} cannot be made: ${error instanceof Error ? error.message : error}`;
      log.warn(text);
      onResult('failed');
      throw new Answer(status.UNAVAILABLE, text);
    }
  };

  const publishAgain = async (volume: Result<RequestedVolume>): Promise<void> => {
    try {
      if (!volume.ok) throw new Error(volume.error);
      await publisher.publish({ ...volume.value, mounted: true });
    } catch (error) {
      log.warn(`a volume that is in use stays as it is: ${(error as Error).message}`);
    }
  };

  const ownerAt = (target: string) => {
    const owner = ownerOf(target, kubeletRoot);
    if (owner) return owner;
    throw new Answer(status.INVALID_ARGUMENT, `${target} is not where an inline volume lies below ${kubeletRoot}`);
  };

  return {
    async publish(request: PublishRequest, call: Call<PublishRequest>) {
      const target = request.target_path;
      return inTurn(ownerAt(target).podUid, async () => {
        // The kubelet's call has timed out: it calls again, or unpublishes the volume.
        if (call.cancelled) throw new Answer(status.CANCELLED, 'the kubelet waits no longer');
        const volume = parsePublish(request, kubeletRoot);
        if (isPublished(target)) await publishAgain(volume);
        else if (volume.ok) await publishFirst(volume.value);
        else {
          onResult('refused');
          throw new Answer(status.INVALID_ARGUMENT, volume.error);
        }
        return {};
      });
    },
    async unpublish({ target_path: target }: UnpublishRequest) {
      const { podUid } = ownerAt(target);
      return inTurn(podUid, async () => {
        takeDown(podUid, target);
        return {};
      });
    },
  };
}

/** Runs work with the same key one after the other. */
function turns(): <T>(key: string, work: () => Promise<T>) => Promise<T> {
  const last = new Map<string, Promise<unknown>>();
  return (key, work) => {
    const turn = (last.get(key) ?? Promise.resolve()).then(work);
    const over = turn
      .catch(() => {})
      .then(() => {
        if (last.get(key) === over) last.delete(key);
      });
    last.set(key, over);
    return turn;
  };
}
