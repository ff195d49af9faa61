// The question to `kubectl dra ui`, and its answer.

/** What `api/why` answers: lines as `kubectl dra why` prints them, and changes after which the pod fits. */
export interface Answer {
  clear: boolean;
  lines: string[];
  more_lines: number;
  fixes: { node: string; text: string }[];
  command: string;
  /** Why the last read of the cluster failed; empty if it did not. */
  error: string;
}

/** Whether a text is an address that `kubectl dra ui` prints: of this machine, with a token. */
export function isAddress(text: string): boolean {
  return /^http:\/\/(127\.0\.0\.1|localhost):\d{1,5}\/[\w-]{20,}\/$/.test(text);
}

/** The answer for a pod as `namespace/name`. Throws an Error with words for a person. */
export async function ask(address: string, pod: string, signal?: AbortSignal): Promise<Answer> {
  // Another address may belong to somebody else, who would learn the names of pods.
  if (!isAddress(address)) {
    throw new Error('Set the address that kubectl dra ui printed in the settings of this plugin.');
  }
  const query = new URLSearchParams({ kind: 'pod', key: pod });
  let answer: Response;
  try {
    answer = await fetch(`${address}api/why?${query}`, { signal, credentials: 'omit' });
  } catch {
    throw new Error(
      'kubectl dra ui does not answer: start it with --allow-origin, and set its new address in the settings.'
    );
  }
  if (answer.status === 404) throw new Error('kubectl dra ui does not know this pod yet.');
  if (!answer.ok) throw new Error((await answer.text()).trim() || `kubectl dra ui answered ${answer.status}`);
  return answer.json();
}

/** The answer as one text, which says first if it may be old. */
export function asText(answer: Answer): string {
  const old = answer.error ? [`The cluster could not be read again, this is from before: ${answer.error}`] : [];
  const more = answer.more_lines > 0 ? [`… ${answer.more_lines} more lines`] : [];
  return [...old, ...answer.lines, ...more].join('\n');
}
