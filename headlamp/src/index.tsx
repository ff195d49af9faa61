// Shows in Headlamp why a pod waits for devices, and what helps: the answer of `kubectl dra ui`, which runs on the machine
// of the browser with the person's own credentials. The plugin asks nobody else.

import { ConfigStore, registerDetailsViewSection, registerPluginSettings } from '@kinvolk/headlamp-plugin/lib';
import { NameValueTable, SectionBox } from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import Button from '@mui/material/Button';
import TextField from '@mui/material/TextField';
import Typography from '@mui/material/Typography';
import React from 'react';
import { Answer, ask, asText, isAddress } from './why';

const NAME = 'dra-why';
const REPEAT_MILLISECONDS = 10_000;
const store = new ConfigStore<{ address?: string }>(NAME);

/** What the browser sends as the origin of this page: the pages of the desktop app are files, which have none. */
export function origin(location: { origin: string }): string {
  return location.origin.startsWith('http') ? location.origin : 'null';
}

function Settings(props: { data?: { address?: string }; onDataChange?: (data: { address: string }) => void }) {
  const address = props.data?.address ?? '';
  return (
    <TextField
      fullWidth
      label="Address that kubectl dra ui printed"
      value={address}
      error={address !== '' && !isAddress(address)}
      helperText={`Start it by: kubectl dra ui --allow-origin ${origin(window.location)}`}
      onChange={event => props.onDataChange?.({ address: event.target.value.trim() })}
    />
  );
}

const useAddress = store.useConfig();

/** The newest answer for a pod, or words that say why there is none. */
function useAnswer(address: string, pod: string): Answer | string {
  const [answer, setAnswer] = React.useState<Answer | string>('asking…');
  React.useEffect(() => {
    const leaving = new AbortController();
    const renew = () =>
      ask(address, pod, leaving.signal).then(setAnswer, error => {
        if (!leaving.signal.aborted) setAnswer(String(error.message));
      });
    setAnswer('asking…');
    renew();
    const timer = setInterval(renew, REPEAT_MILLISECONDS);
    return () => {
      clearInterval(timer);
      leaving.abort();
    };
  }, [address, pod]);
  return answer;
}

function Why({ pod }: { pod: string }) {
  const answer = useAnswer(useAddress()?.address ?? '', pod);
  if (typeof answer === 'string') return <Typography role="status">{answer}</Typography>;
  return (
    <>
      {answer.fixes.length > 0 && (
        <NameValueTable rows={answer.fixes.map(fix => ({ name: fix.text, value: `then it fits on ${fix.node}` }))} />
      )}
      <Typography component="pre" sx={{ whiteSpace: 'pre-wrap', overflowWrap: 'anywhere', fontSize: 13 }}>
        {asText(answer)}
      </Typography>
      <Button size="small" onClick={() => navigator.clipboard.writeText(asText(answer))}>
        Copy the answer
      </Button>
      {answer.command && (
        <Button size="small" onClick={() => navigator.clipboard.writeText(answer.command)}>
          Copy the command
        </Button>
      )}
    </>
  );
}

registerPluginSettings(NAME, Settings, true);
registerDetailsViewSection(({ resource }) => {
  const spec = resource?.jsonData?.spec;
  // A pod without a node may wait for devices without a claim: for an extended resource.
  if (resource?.kind !== 'Pod' || (!spec?.resourceClaims?.length && spec?.nodeName)) return null;
  return (
    <SectionBox title="Devices: why the pod waits">
      <Why pod={`${resource.metadata.namespace}/${resource.metadata.name}`} />
    </SectionBox>
  );
});
