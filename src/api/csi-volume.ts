// The inline CSI volume of a pod with a share and its containers' mounts of it: the webhook adds them, and the node's
// agent gives no grant to a pod that has them in another form.
import { field, type JsonObject, listAt, textAt } from '../common/json.ts';

export const VOLUME_NAME = 'cotenant';
export const CSI_DRIVER = 'cotenant.io';
export const PRELOAD = '/etc/ld.so.preload';
export const HOME = '/run/cotenant';

// No `readOnly`: it would make the ledgers read-only too. The other files are on a read-only superblock.
export const VOLUME: JsonObject = { name: VOLUME_NAME, csi: { driver: CSI_DRIVER } };

/** The mounts of one container with a share, parents before children. */
export function mountsOf(container: string): readonly JsonObject[] {
  const name = VOLUME_NAME;
  return [
    { name, mountPath: PRELOAD, subPath: 'ld.so.preload', readOnly: true },
    { name, mountPath: HOME, subPath: 'lib', readOnly: true },
    { name, mountPath: `${HOME}/limits`, subPath: `containers/${container}/limits`, readOnly: true },
    { name, mountPath: `${HOME}/ledger`, subPath: `ledgers/${container}/ledger` },
  ];
}

/**
 * What is wrong with the volume or its mounts in a pod as the API server has it, in one sentence; `shares`: names of
 * its containers with a share. The webhook adds exactly these, so anything else did not come through it.
 */
export function wrongMounts(pod: unknown, shares: ReadonlySet<string>): string | undefined {
  const spec = field(pod, 'spec');
  const ours = listAt(spec, 'volumes').filter((volume) => isOurs(volume));
  if (ours.length !== 1 || !sameFields(VOLUME, ours[0]))
    return `its volume "${VOLUME_NAME}" is not as the webhook writes it`;
  for (const list of ['initContainers', 'containers', 'ephemeralContainers']) {
    for (const container of listAt(spec, list)) {
      const name = textAt(container, 'name') ?? '';
      const mounts = listAt(container, 'volumeMounts').filter((mount) => textAt(mount, 'name') === VOLUME_NAME);
      const wanted = shares.has(name) ? mountsOf(name) : [];
      const exact =
        mounts.length === wanted.length && wanted.every((own) => mounts.some((mount) => sameFields(own, mount)));
      if (!exact) return `container ${name} does not mount the volume "${VOLUME_NAME}" as the webhook writes it`;
    }
  }
  return undefined;
}

const isOurs = (volume: unknown): boolean =>
  textAt(volume, 'name') === VOLUME_NAME || field(field(volume, 'csi'), 'driver') === CSI_DRIVER;

/** Equal, where an absent field and one without a value are the same, as readers of the API have them. */
function sameFields(own: unknown, given: unknown): boolean {
  if (typeof own !== 'object' || own === null) return own === given;
  if (typeof given !== 'object' || given === null) return false;
  const keys = new Set([...Object.keys(own), ...Object.keys(given)]);
  return [...keys].every((key) => {
    const [a, b] = [field(own, key), field(given, key)];
    return a === undefined ? b === undefined || b === null : sameFields(a, b);
  });
}
