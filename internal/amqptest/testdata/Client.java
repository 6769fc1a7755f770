import javax.jms.*;
import org.apache.qpid.jms.JmsConnectionFactory;

/** A JMS client: "send URL QUEUE" sends a text and prints its JMSMessageID; "receive URL QUEUE" prints what it gets, a line each. */
public class Client {
  public static void main(String[] args) throws Exception {
    JmsConnectionFactory factory = new JmsConnectionFactory(System.getenv("AMQP_USER"), System.getenv("AMQP_PASSWORD"), args[1]);
    try (Connection connection = factory.createConnection()) {
      connection.start();
      Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
      Queue queue = session.createQueue(args[2]);
      if (args[0].equals("send")) {
        TextMessage message = session.createTextMessage("kopi \u2615");
        message.setStringProperty("trace", "abc");
        message.setIntProperty("quantity", 3);
        message.setStringProperty("JMSXGroupID", "KOPI-250");
        session.createProducer(queue).send(message);
        System.out.println(message.getJMSMessageID());
        return;
      }
      Message message = session.createConsumer(queue).receive(20_000);
      System.out.println(message.getJMSMessageID());
      System.out.println(message.getIntProperty("JMSXDeliveryCount"));
      System.out.println(message.getStringProperty("JMSXGroupID"));
      System.out.println(message.getStringProperty("trace"));
      System.out.println(new String(message.getBody(byte[].class), "UTF-8"));
    }
  }
}
