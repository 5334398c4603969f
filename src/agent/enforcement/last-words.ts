// The last words of a container that is stopped: the file that the kubelet reads when it ends and shows as its message. Owns
// the finding and the writing; a tenant writes to the same file, so nothing in it is believed and no link is followed.
import { closeSync, constants, fstatSync, openSync, readdirSync, statSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type Grant, isOfPod } from '../grants/grant.ts';

/** Kubernetes shows the last so many bytes. */
const LONGEST = 4096;

/** The newest of the files that the kubelet made for starts of the container; undefined where it made none. */
export function terminationLogOf(kubeletRoot: string, podUid: string, container: string): string | undefined {
  const folder = join(kubeletRoot, 'pods', podUid, 'containers', container);
  try {
    const files = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile());
    const dated = files.map(({ name }) => ({ path: join(folder, name), at: statSync(join(folder, name)).birthtimeMs }));
    return dated.toSorted((a, b) => b.at - a.at)[0]?.path;
  } catch {
    return undefined;
  }
}

/** Throws where the file cannot be written; what the container wrote itself stays before it. */
export function writeLastWords(path: string, message: string): void {
  const fd = openSync(path, constants.O_WRONLY | constants.O_APPEND | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const info = fstatSync(fd);
    if (!info.isFile()) throw new Error('not a file');
    writeSync(fd, `${info.size > 0 ? '\n' : ''}${message}`.slice(0, LONGEST));
  } finally {
    closeSync(fd);
  }
}

export function createLastWords(
  kubeletRoot: string,
  onProblem: (text: string) => void,
): (grant: Grant, message: string, terminationLog: string | undefined) => void {
  return ({ owner, namespace, pod, container }, message, terminationLog) => {
    if (!isOfPod(owner)) return;
    const path = terminationLog ?? terminationLogOf(kubeletRoot, owner.podUid, container);
    try {
      if (path === undefined) throw new Error('the kubelet made no file for it');
      writeLastWords(path, message);
    } catch (error) {
      onProblem(
        `${namespace}/${pod}/${container} is stopped without a termination message: ${(error as Error).message}`,
      );
    }
  };
}
