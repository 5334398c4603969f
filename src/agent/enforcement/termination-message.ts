// The last words of a container that is stopped: the file that the kubelet reads when it ends and shows as its message. Owns
// the finding and the writing. A tenant chooses where in its container the file is seen, and writes to it, too: so only a file
// in the kubelet's own folder is opened, no link is followed, and nothing in it is believed.
import { closeSync, constants, fstatSync, openSync, readdirSync, realpathSync, statSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type Grant, isOfPod } from '../grants/grant.ts';

/** Kubernetes shows the last so many bytes. */
const LONGEST = 4096;
/** The kubelet names the file of each start so. */
const NAME = /^[0-9a-f]{8}$/;

const placeOf = (podUid: string, container: string): string[] => ['pods', podUid, 'containers', container];

/** The kubelet's file behind a mount of a container, if it is one of that container's. */
export function terminationLogBehind(source: string, podUid: string, container: string): string | undefined {
  const segments = source.split('/');
  const name = segments.pop() ?? '';
  const place = placeOf(podUid, container);
  return NAME.test(name) && segments.slice(-place.length).join('/') === place.join('/') ? name : undefined;
}

/** The kubelet's folder for the container; throws where it is not there or not that one, by a link on the way. */
function folderOf(kubeletRoot: string, podUid: string, container: string): string {
  const place = placeOf(podUid, container);
  const folder = join(realpathSync(kubeletRoot), ...place);
  if (place.some((segment) => !/^[\w-][\w.-]*$/.test(segment)) || realpathSync(folder) !== folder)
    throw new Error(`${folder} is not the kubelet's folder`);
  return folder;
}

/** Of the files that the kubelet made for starts of the container the one of this name, else the newest. */
function fileIn(folder: string, told: string | undefined): string | undefined {
  const files = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile() && NAME.test(entry.name));
  if (files.some(({ name }) => name === told)) return told;
  const dated = files.map(({ name }) => ({ name, at: statSync(join(folder, name)).birthtimeMs }));
  return dated.toSorted((a, b) => b.at - a.at)[0]?.name;
}

/**
 * Appends to the file that the runtime told by its name, else to the newest; what the container wrote itself stays before it.
 * Throws where there is none, or where it cannot be written.
 */
export function writeTerminationMessage(folder: string, told: string | undefined, message: string): void {
  const name = fileIn(folder, told);
  if (name === undefined) throw new Error('the kubelet made no file for it');
  const { O_WRONLY, O_APPEND, O_NOFOLLOW, O_NONBLOCK, O_NOCTTY } = constants;
  const fd = openSync(join(folder, name), O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  try {
    writeSync(fd, `${fstatSync(fd).size > 0 ? '\n' : ''}${message}`.slice(0, LONGEST));
  } finally {
    closeSync(fd);
  }
}

/** `terminationLog`: the name of the file, where the runtime told it. */
export function createTerminationMessages(
  kubeletRoot: string,
  onProblem: (text: string) => void,
): (grant: Grant, message: string, terminationLog: string | undefined) => void {
  return ({ owner, namespace, pod, container }, message, terminationLog) => {
    if (!isOfPod(owner)) return;
    try {
      writeTerminationMessage(folderOf(kubeletRoot, owner.podUid, container), terminationLog, message);
    } catch (error) {
      onProblem(
        `${namespace}/${pod}/${container} is stopped without a termination message: ${(error as Error).message}`,
      );
    }
  };
}
