// Validates the kubelet's CSI requests: an inline volume, for a named pod, at the only path that this pod's volume may
// have. Pure.
import { CSI_DRIVER, VOLUME_NAME } from '../../../api/csi-volume.ts';
import { err, ok, type Result } from '../../../common/result.ts';

export type PublishRequest = {
  readonly target_path: string;
  readonly readonly: boolean;
  readonly volume_context: Readonly<Record<string, string>>;
};

export type UnpublishRequest = { readonly target_path: string };

export type RequestedVolume = {
  readonly podUid: string;
  readonly namespace: string;
  readonly pod: string;
  readonly target: string;
};

const UID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const NAME = /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/;
const INFO = 'csi.storage.k8s.io/';

/** Pod and volume of that path; undefined: it is not the path of an inline volume. */
export function ownerOf(
  target: string,
  kubeletRoot: string,
): { readonly podUid: string; readonly volume: string } | undefined {
  const start = `${kubeletRoot}/pods/`;
  if (!target.startsWith(start)) return undefined;
  const [podUid = '', volumes, kind, volume = '', mount, ...rest] = target.slice(start.length).split('/');
  const isPlace = volumes === 'volumes' && kind === 'kubernetes.io~csi' && mount === 'mount' && rest.length === 0;
  const areNames = /^[A-Za-z0-9-]+$/.test(podUid) && /^[a-z0-9-]+$/.test(volume);
  return isPlace && areNames ? { podUid, volume } : undefined;
}

/** The parsed request, or the reason why it is invalid. */
export function parsePublish(request: PublishRequest, kubeletRoot: string): Result<RequestedVolume> {
  const { target_path: target, volume_context: context } = request;
  const info = (key: string) => context[INFO + key] ?? '';
  const [podUid, namespace, pod] = [info('pod.uid'), info('pod.namespace'), info('pod.name')];
  if (podUid === '' || namespace === '' || pod === '') {
    return err(`the kubelet names no pod; the CSIDriver object ${CSI_DRIVER} must have podInfoOnMount: true`);
  }
  if (!UID.test(podUid) || !NAME.test(namespace) || !NAME.test(pod)) {
    const name = JSON.stringify([namespace, pod, podUid]).slice(0, 200);
    return err(`${name} is no pod of an API server; static pods can have no share of a GPU`);
  }
  const named = `pod ${namespace}/${pod}`;
  if (info('ephemeral') !== 'true') {
    return err(`${named} asks for a volume that is not inline; leave it out, the webhook adds the right one`);
  }
  const owner = ownerOf(target, kubeletRoot);
  if (owner?.podUid !== podUid) return err(`${target} is not where a volume of ${named} lies`);
  if (owner.volume !== VOLUME_NAME) {
    return err(`the volume "${owner.volume}" of ${named} must be named "${VOLUME_NAME}"; leave it to the webhook`);
  }
  if (request.readonly) {
    return err(`the volume of ${named} must not be readOnly, for ledgers in it are written; leave it to the webhook`);
  }
  return ok({ podUid, namespace, pod, target });
}
